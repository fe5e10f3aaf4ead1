"""The graph of owner references, and the objects that may have become garbage.

The store updates the graph with each change. It has living uids, their dependents, and a queue of suspects for the
collector (``home/controllers/garbage.py``), which deletes objects.

An object that a controller creates again after a restart keeps its uid, so that references stay valid. Such an object
is not on disk (``is_durable``), and has an owner or is in the system's namespace. Its uid is derived from its owner's
uid, its kind and its name. An object that is deleted and created again in the same run gets a random uid, as on a real
API server.
"""

import collections
import random
import uuid

from serving.core.model.objects import Key, Object, controller_uid_of, name_of, namespace_of
from serving.home.schemas.records import Stored
from serving.home.store.durability import is_durable
from serving.home.store.history import StoreChange
from serving.net.cluster.identity import SYSTEM_NAMESPACE
from serving.net.cluster.kinds import NAMESPACE, Kind
from serving.net.cluster.workqueue import WorkQueue

Reference = tuple[Kind, Key]
"""An object by its kind, namespace and name."""

# Arbitrary: it only separates these uids from those that others derive.
_SPACE = uuid.UUID("6f1a4c1e-8a53-4a0b-9d0a-6f3a5f0d7c55")
# Deleted objects that are remembered: 1,000 deleted services have about 8 each.
_RETIRED_MAX = 8192


class Owners:
    """The graph of owner references, by uid."""

    def __init__(self) -> None:
        self.suspects: WorkQueue[Reference] = WorkQueue("garbage")
        self._living: dict[str, Reference] = {}
        self._dependents: dict[str, set[Reference]] = {}
        self._deleting: set[Reference] = set()

    def is_living(self, uid: str, *, namespace: str) -> bool:
        """Whether the owner with this uid exists, in this namespace or as a cluster-scoped object."""
        reference = self._living.get(uid)
        return reference is not None and reference[1][0] in {"", namespace}

    def dependents_of(self, uid: str) -> list[Reference]:
        """All dependents of an owner, in a stable order."""
        return sorted(self._dependents.get(uid, ()), key=lambda reference: (reference[0].resource, reference[1]))

    def apply(self, kind: Kind, change: StoreChange) -> None:
        """Update the graph for a change in the store."""
        old, new = change.old, change.new
        this: Reference = (kind, new.key)
        if change.is_removal:
            assert old is not None, "what is removed was there"
            self._forget(this, old)
            return
        if old is None:
            self._living[new.uid] = this
        if old is None or old.owner_uids != new.owner_uids:
            self._relate(this, old, new)
        if new.is_deleting:
            self._deleting.add(this)
            self.suspects.add(this)

    def _relate(self, this: Reference, old: Stored | None, new: Stored) -> None:
        self._unrelate(this, old)
        for uid in new.owner_uids:
            self._dependents.setdefault(uid, set()).add(this)
        if new.owner_uids and not all(self.is_living(uid, namespace=new.key[0]) for uid in new.owner_uids):
            self.suspects.add(this)

    def _unrelate(self, this: Reference, old: Stored | None) -> None:
        # A client may name an owner twice.
        for uid in set(old.owner_uids) if old is not None else ():
            dependents = self._dependents[uid]
            dependents.discard(this)
            if not dependents:
                del self._dependents[uid]

    def _forget(self, this: Reference, last: Stored) -> None:
        del self._living[last.uid]
        self._deleting.discard(this)
        self.suspects.forget(this)
        self._unrelate(this, last)
        for dependent in self.dependents_of(last.uid):
            self.suspects.add(dependent)
        # Its owner and its namespace may be waiting for this deletion (foreground).
        waiting = [self._living[uid] for uid in last.owner_uids if uid in self._living]
        for reference in (*waiting, (NAMESPACE, ("", last.key[0]))):
            if reference in self._deleting:
                self.suspects.add(reference)


class Uids:
    """Assigns the uids of new objects. ``dice`` generates random uids."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._retired: collections.OrderedDict[str, None] = collections.OrderedDict()

    def new(self, kind: Kind, new: Object) -> str:
        """The uid for a new object, given its name and namespace."""
        derived = derived_uid(kind, new)
        if derived and derived not in self._retired:
            return derived
        return str(uuid.UUID(int=self._dice.getrandbits(128), version=4))

    def retire(self, kind: Kind, uid: str) -> None:
        """Record a deleted object's uid, so that it is not reused in this run."""
        if kind.durable:
            return
        self._retired[uid] = None
        if len(self._retired) > _RETIRED_MAX:
            self._retired.popitem(last=False)


def derived_uid(kind: Kind, new: Object) -> str:
    """The uid of a derived object, computed from its name and its owner's uid, so that it is the same after a restart.

    It is "" for any other object: one that the journal stores, one with a generated name, and one without an owner
    outside of the system's namespace.
    """
    owner_uid, namespace = controller_uid_of(new), namespace_of(new)
    is_made_again = bool(owner_uid) or namespace == SYSTEM_NAMESPACE
    if is_durable(kind, new) or not is_made_again or new["metadata"].get("generateName"):
        return ""
    return str(uuid.uuid5(_SPACE, "/".join((owner_uid, kind.resource, namespace, name_of(new)))))
