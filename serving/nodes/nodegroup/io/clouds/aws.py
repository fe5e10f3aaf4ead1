"""AWS as a cloud: Auto Scaling groups, and instant fleets if a launch template is set. Needs the extra ``aws``.

A group is the name of an Auto Scaling group. Growing sets its desired capacity, an absolute number, so a repeated call
cannot double it. With ``launch_template_id``, an instant fleet starts the machines, and they are attached to the group.
If not all machines start, the started ones are terminated. Deleting terminates instances of the group one by one, and
lowers its desired capacity with each.

Source: atlassian/escalator 043bb1b, pkg/cloudprovider/aws.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from serving.core.model.errors import CloudRefused, CloudUnavailable
from serving.core.model.quantity import parse_duration_s
from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.core.settings.nodegroup_options import AwsOptions
from serving.nodes.nodegroup.cloud import CloudMachine, Deletion
from serving.nodes.nodegroup.io.clouds.awsquery import AwsApis, Parameters, numbered, opened_apis, text_of
from serving.nodes.nodegroup.records import CloudGroup

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# aws:///ZONE/ID
_PROVIDER = "aws"
# Most instances in one API call.
_ATTACHED_AT_ONCE = 20
_POLL_S = 1.0
_GROUPS, _MACHINES = "autoscaling", "ec2"


@asynccontextmanager
async def opened_aws(
    settings: NodeGroupDaemonSettings, *, options: Callable[[str], AwsOptions] = lambda _: AwsOptions()
) -> AsyncIterator["AwsCloud"]:
    """The AWS cloud, as a context. Raises ``SettingsError`` if the extra is not installed or no region is set."""
    async with opened_apis(settings) as apis:
        yield AwsCloud(apis, options=options)


class AwsCloud:
    """The cloud port for AWS. ``options`` returns a group's AWS options by the name of its Auto Scaling group."""

    def __init__(self, apis: AwsApis, *, options: Callable[[str], AwsOptions]) -> None:
        self._apis = apis
        self._options = options

    async def describe(self, group: str) -> CloudGroup:
        """Read the target and bounds of a group."""
        return _size_of(await self._group(group))

    async def increase(self, group: str, count: int) -> None:
        """Raise the target of a group. With a launch template, wait until the machines run."""
        description = await self._group(group)
        size = _size_of(description)
        if count < 1 or size.target_size + count > size.max_size:
            raise CloudRefused(f"{group}: {size.target_size} + {count} is above the maximum {size.max_size}")
        options = self._options(group)
        if options.launch_template_id:
            await self._start_fleet(description, count, options)
            return
        capacity = {"DesiredCapacity": str(size.target_size + count), "HonorCooldown": "false"}
        await self._apis.call(_GROUPS, "SetDesiredCapacity", {"AutoScalingGroupName": group, **capacity})

    async def delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        """Terminate machines and lower the target."""
        description = await self._group(group)
        size = _size_of(description)
        members = {text_of(member, "InstanceId") for member in description.iterfind("{*}Instances/{*}member")}
        ids = {machine.node_name: _instance_of(machine.provider_id) for machine in machines}
        ours = {name: instance for name, instance in ids.items() if instance in members}
        gone = await self._gone([instance for instance in ids.values() if instance and instance not in members])
        if ours and size.target_size - len(ours) < size.min_size:
            raise CloudRefused(f"{group}: {size.target_size} - {len(ours)} is below the minimum {size.min_size}")
        deleted = [name for name, instance in ids.items() if instance in gone]
        failed: dict[str, str] = {}
        for name, instance in ids.items():
            if name not in ours:
                if name not in deleted:
                    failed[name] = f"{instance or 'without an instance id'} is not in {group}"
                continue
            parameters = {"InstanceId": instance, "ShouldDecrementDesiredCapacity": "true"}
            try:
                await self._apis.call(_GROUPS, "TerminateInstanceInAutoScalingGroup", parameters)
            except (CloudRefused, CloudUnavailable) as error:
                failed[name] = str(error)
            else:
                deleted.append(name)
        return Deletion(deleted=tuple(deleted), failed=failed)

    async def _group(self, group: str) -> "Element":
        answer = await self._apis.call(_GROUPS, "DescribeAutoScalingGroups", {"AutoScalingGroupNames.member.1": group})
        description = answer.find(".//{*}AutoScalingGroups/{*}member")
        if description is None:
            raise CloudRefused(f"there is no Auto Scaling group {group}")
        return description

    async def _gone(self, instances: Sequence[str]) -> set[str]:
        """The instances that are terminated or unknown to AWS."""
        if not instances:
            return set()
        parameters = {"Filter.1.Name": "instance-id", **numbered("Filter.1.Value", instances)}
        states = await self._states(parameters)
        return {
            instance for instance in instances if states.get(instance, "terminated") in {"terminated", "shutting-down"}
        }

    async def _states(self, parameters: Parameters) -> dict[str, str]:
        """The state of each instance that AWS knows."""
        answer = await self._apis.call(_MACHINES, "DescribeInstances", parameters)
        instances = answer.iterfind(".//{*}instancesSet/{*}item")
        return {text_of(item, "instanceId"): text_of(item, "instanceState/{*}name") for item in instances}

    async def _start_fleet(self, description: "Element", count: int, options: AwsOptions) -> None:
        """Start machines by a fleet, and attach them. If some do not run in time, terminate all of them."""
        answer = await self._apis.call(_MACHINES, "CreateFleet", _fleet(description, count, options))
        instances = [item.text or "" for item in answer.iterfind(".//{*}instanceIds/{*}item")]
        try:
            _check_complete(answer, instances, count)
            await self._wait_until_running(instances, parse_duration_s(options.fleet_instance_ready_timeout))
            name = text_of(description, "AutoScalingGroupName")
            for start in range(0, len(instances), _ATTACHED_AT_ONCE):
                batch = numbered("InstanceIds.member", instances[start : start + _ATTACHED_AT_ONCE])
                await self._apis.call(_GROUPS, "AttachInstances", {"AutoScalingGroupName": name, **batch})
        except (CloudRefused, CloudUnavailable):
            if instances:
                await self._apis.call(_MACHINES, "TerminateInstances", numbered("InstanceId", instances))
            raise

    async def _wait_until_running(self, instances: Sequence[str], within_s: float) -> None:
        until_s = time.monotonic() + within_s
        while True:
            states = list((await self._states(numbered("InstanceId", instances))).values())
            if len(states) == len(instances) and set(states) == {"running"}:
                return
            if time.monotonic() >= until_s:
                raise CloudRefused(f"{states.count('running')} of {len(instances)} machines run after {within_s:g} s")
            await asyncio.sleep(_POLL_S)


def _check_complete(answer: "Element", instances: Sequence[str], count: int) -> None:
    if len(instances) < count:
        reasons = "; ".join(error.text or "" for error in answer.iterfind(".//{*}errorMessage"))
        raise CloudRefused(f"the fleet has {len(instances)} of {count} machines: {reasons or 'no capacity'}")


def _fleet(description: "Element", count: int, options: AwsOptions) -> Parameters:
    """The request for a fleet in the subnets of a group."""
    parameters = {"Type": "instant", "TargetCapacitySpecification.TotalTargetCapacity": str(count)}
    if options.lifecycle:
        parameters["TargetCapacitySpecification.DefaultTargetCapacityType"] = options.lifecycle
    config = "LaunchTemplateConfigs.1"
    parameters[f"{config}.LaunchTemplateSpecification.LaunchTemplateId"] = options.launch_template_id
    if options.launch_template_version:
        parameters[f"{config}.LaunchTemplateSpecification.Version"] = options.launch_template_version
    subnets = [subnet for subnet in text_of(description, "VPCZoneIdentifier").split(",") if subnet]
    pairs = [(subnet, kind) for subnet in subnets or [""] for kind in options.instance_type_overrides or ("",)]
    for index, (subnet, kind) in enumerate((pair for pair in pairs if any(pair)), start=1):
        if subnet:
            parameters[f"{config}.Overrides.{index}.SubnetId"] = subnet
        if kind:
            parameters[f"{config}.Overrides.{index}.InstanceType"] = kind
    return parameters


def _size_of(description: "Element") -> CloudGroup:
    target, least, most = (int(text_of(description, name)) for name in ("DesiredCapacity", "MinSize", "MaxSize"))
    return CloudGroup(target_size=target, min_size=least, max_size=most)


def _instance_of(provider_id: str) -> str:
    """The instance id in "aws:///eu-west-1a/i-0a1b"; "" for other clouds."""
    scheme, _, rest = provider_id.partition(":///")
    return rest.rpartition("/")[2] if scheme == _PROVIDER else ""
