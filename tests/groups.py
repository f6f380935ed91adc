"""Groups of tests that share compiled functions, each of which runs in one process."""

import re

from xdist.scheduler import LoadScopeScheduling

from fedjax_ht.methods import METHODS


def group_of(nodeid: str) -> str:
    """Names the group of a test: those of a file, or of a method in a file or in tests/methods."""
    file, _, test = nodeid.partition("::")
    parameters = re.split(r"[\[\]-]", test)[1:]
    method = next((p for p in parameters if p in METHODS), "")
    return f"{'tests/methods' if method and file.startswith('tests/methods/') else file}:{method}"


class GroupScheduling(LoadScopeScheduling):
    """One process runs a group. (`--dist loadgroup` does not see groups under pytest 9.2.)"""

    def _split_scope(self, nodeid):
        return group_of(nodeid)

    def remove_node(self, node):
        """Gives what a process that died has left to the others; returns the test that it died in.

        xdist 3.8 hands out the groups that it had finished, too: a process that is given nothing to
        run reports nothing, and is never given more. And it runs the test that killed it again.
        """
        left = {}
        for group, tests in self.assigned_work.pop(node).items():
            pending = {test: False for test, is_done in tests.items() if not is_done}
            if pending:
                left[group] = pending
        if not left:
            return None
        group = next(iter(left))
        crashed = next(iter(left[group]))
        del left[group][crashed]
        if not left[group]:
            del left[group]
        self.workqueue.update(left)
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed
