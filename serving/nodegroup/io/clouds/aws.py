"""AWS as a cloud: Auto Scaling groups, and one-shot fleets where a launch template is given. Needs boto3.

A group is the name of an Auto Scaling group. Growing sets its desired capacity, an absolute number, so a repeated call cannot double it.
With ``launch_template_id`` a fleet of the type instant starts the machines and they are attached to the group: all start, or none stays.
Deleting terminates instances of the group one by one and lowers its desired capacity with each. boto3 blocks, so calls run in
threads.

Source: atlassian/escalator 043bb1b, pkg/cloudprovider/aws.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from serving.model.errors import CloudRefused, CloudUnavailable, Problem, SettingsError
from serving.model.quantity import parse_duration_s
from serving.nodegroup.cloud import CloudMachine, Deletion
from serving.nodegroup.records import CloudGroup
from serving.settings.nodegroup import NodeGroupDaemonSettings
from serving.settings.nodegroup_options import AwsOptions

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

T = TypeVar("T")

# aws:///ZONE/ID
_PROVIDER = "aws"
# The API takes no more instances in one call.
_ATTACHED_AT_ONCE = 20
_POLL_S = 1.0
_BUSY_CODES = ("Throttl", "RequestLimitExceeded", "ServiceUnavailable", "InternalFailure", "InternalError")


class AwsCloud:
    """``options`` returns the AWS options of a group by the name of its Auto Scaling group."""

    def __init__(
        self, settings: NodeGroupDaemonSettings, *, options: Callable[[str], AwsOptions] = lambda _: AwsOptions()
    ) -> None:
        """Raises ``SettingsError`` without boto3."""
        try:
            import boto3  # noqa: PLC0415 - an extra
            from botocore.config import Config  # noqa: PLC0415 - as above
        except ImportError as error:
            expected = "pip install --no-deps boto3 botocore s3transfer jmespath"
            problem = Problem(where="cloud-provider", what="boto3 is not installed", expected=expected)
            raise SettingsError([problem]) from error
        timeout_s = settings.cloud_timeout_s
        config = Config(connect_timeout=timeout_s, read_timeout=timeout_s, retries={"total_max_attempts": 1})
        where = {"endpoint_url": settings.aws_endpoint_url or None, "config": config}
        session = boto3.Session(region_name=settings.aws_region or None)
        if settings.aws_assume_role_arn:
            session = _assumed(session, settings.aws_assume_role_arn, where)
        self._groups: Any = session.client("autoscaling", **where)
        self._machines: Any = session.client("ec2", **where)
        self._options = options

    async def describe(self, group: str) -> CloudGroup:
        """Read the target and bounds of a group."""
        return _size_of(await asyncio.to_thread(self._found, group))

    async def increase(self, group: str, count: int) -> None:
        """Raise the target of a group. With a launch template, wait until the machines run."""
        await asyncio.to_thread(self._increase, group, count)

    async def delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        """Terminate machines and lower the target."""
        return await asyncio.to_thread(self._delete, group, machines)

    def _found(self, group: str) -> Mapping[str, Any]:
        with _mapped():
            found = self._groups.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
        if not found:
            raise CloudRefused(f"there is no Auto Scaling group {group}")
        only: Mapping[str, Any] = found[0]
        return only

    def _increase(self, group: str, count: int) -> None:
        found = self._found(group)
        size = _size_of(found)
        if count < 1 or size.target_size + count > size.max_size:
            raise CloudRefused(f"{group}: {size.target_size} + {count} is above the maximum {size.max_size}")
        options = self._options(group)
        if options.launch_template_id:
            self._start_fleet(found, count, options)
            return
        with _mapped():
            self._groups.set_desired_capacity(
                AutoScalingGroupName=group, DesiredCapacity=size.target_size + count, HonorCooldown=False
            )

    def _delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        found = self._found(group)
        size, members = _size_of(found), {one["InstanceId"] for one in found["Instances"]}
        ids = {one.node_name: _instance_of(one.provider_id) for one in machines}
        ours = {name: instance for name, instance in ids.items() if instance in members}
        failed: dict[str, str] = {}
        gone = self._gone([instance for instance in ids.values() if instance and instance not in members])
        deleted = [name for name, instance in ids.items() if instance in gone]
        if ours and size.target_size - len(ours) < size.min_size:
            raise CloudRefused(f"{group}: {size.target_size} - {len(ours)} is below the minimum {size.min_size}")
        for name, instance in ids.items():
            if name not in ours:
                if name not in deleted:
                    failed[name] = f"{instance or 'without an instance id'} is not in {group}"
                continue
            try:
                with _mapped():
                    self._groups.terminate_instance_in_auto_scaling_group(
                        InstanceId=instance, ShouldDecrementDesiredCapacity=True
                    )
            except (CloudRefused, CloudUnavailable) as error:
                failed[name] = str(error)
            else:
                deleted.append(name)
        return Deletion(deleted=tuple(deleted), failed=failed)

    def _gone(self, instances: Sequence[str]) -> set[str]:
        """Those instances that are terminated or unknown to AWS."""
        if not instances:
            return set()
        filters = [{"Name": "instance-id", "Values": list(instances)}]
        with _mapped():
            found = self._machines.describe_instances(Filters=filters)["Reservations"]
        living = {
            one["InstanceId"]
            for reservation in found
            for one in reservation["Instances"]
            if one["State"]["Name"] not in {"terminated", "shutting-down"}
        }
        return set(instances) - living

    def _start_fleet(self, found: Mapping[str, Any], count: int, options: AwsOptions) -> None:
        """Start machines by a fleet and attach them. If not all run in time, terminate the started ones."""
        subnets = [one for one in str(found.get("VPCZoneIdentifier", "")).split(",") if one]
        types = options.instance_type_overrides or (None,)
        overrides = [
            {**({"SubnetId": subnet} if subnet else {}), **({"InstanceType": kind} if kind else {})}
            for subnet in subnets or [""]
            for kind in types
        ]
        template = {"LaunchTemplateId": options.launch_template_id}
        if options.launch_template_version:
            template["Version"] = options.launch_template_version
        capacity: dict[str, Any] = {"TotalTargetCapacity": count}
        if options.lifecycle:
            capacity["DefaultTargetCapacityType"] = options.lifecycle
        with _mapped():
            response = self._machines.create_fleet(
                Type="instant",
                TargetCapacitySpecification=capacity,
                LaunchTemplateConfigs=[
                    {"LaunchTemplateSpecification": template, "Overrides": [one for one in overrides if one]}
                ],
            )
        instances = [one for part in response.get("Instances", ()) for one in part["InstanceIds"]]
        try:
            _check_complete(response, instances, count)
            self._wait_until_running(instances, parse_duration_s(options.fleet_instance_ready_timeout))
            for start in range(0, len(instances), _ATTACHED_AT_ONCE):
                batch = instances[start : start + _ATTACHED_AT_ONCE]
                with _mapped():
                    self._groups.attach_instances(InstanceIds=batch, AutoScalingGroupName=found["AutoScalingGroupName"])
        except (CloudRefused, CloudUnavailable):
            if instances:
                with _mapped():
                    self._machines.terminate_instances(InstanceIds=instances)
            raise

    def _wait_until_running(self, instances: Sequence[str], within_s: float) -> None:
        until_s = time.monotonic() + within_s
        while True:
            with _mapped():
                found = self._machines.describe_instances(InstanceIds=list(instances))["Reservations"]
            states = [one["State"]["Name"] for reservation in found for one in reservation["Instances"]]
            if len(states) == len(instances) and set(states) == {"running"}:
                return
            if time.monotonic() >= until_s:
                raise CloudRefused(f"{states.count('running')} of {len(instances)} machines run after {within_s:g} s")
            time.sleep(_POLL_S)


def _check_complete(response: Mapping[str, Any], instances: Sequence[str], count: int) -> None:
    if len(instances) < count:
        reasons = "; ".join(str(one.get("ErrorMessage", "")) for one in response.get("Errors", ()))
        raise CloudRefused(f"the fleet has {len(instances)} of {count} machines: {reasons or 'no capacity'}")


def _assumed(session: Any, role: str, where: Mapping[str, Any]) -> Any:  # noqa: ANN401 - boto3 has no types
    import boto3  # noqa: PLC0415 - an extra

    with _mapped():
        response = session.client("sts", **where).assume_role(RoleArn=role, RoleSessionName="serving-nodegroup")
    given = response["Credentials"]
    return boto3.Session(
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"],
        aws_session_token=given["SessionToken"],
        region_name=session.region_name,
    )


def _size_of(found: Mapping[str, Any]) -> CloudGroup:
    return CloudGroup(target_size=found["DesiredCapacity"], min_size=found["MinSize"], max_size=found["MaxSize"])


def _instance_of(provider_id: str) -> str:
    """The instance of "aws:///eu-west-1a/i-0a1b"; "" for another cloud's."""
    scheme, _, rest = provider_id.partition(":///")
    return rest.rpartition("/")[2] if scheme == _PROVIDER else ""


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra

    try:
        yield
    except ClientError as error:
        raise _refused_or_busy(error) from error
    except BotoCoreError as error:
        raise CloudUnavailable(f"AWS: {error}") from error


def _refused_or_busy(error: "ClientError") -> CloudRefused | CloudUnavailable:
    code = error.response.get("Error", {}).get("Code", "")
    is_busy = any(code.startswith(one) for one in _BUSY_CODES)
    return CloudUnavailable(f"AWS: {error}") if is_busy else CloudRefused(f"AWS: {error}")
