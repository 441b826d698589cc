"""Checks a tunnel before and while it runs; every check has a name, a verdict, evidence and a fix.

`of_ignition` checks an ignition file, `of_directory` a directory that `bootbridge render` wrote, `of_node` a
node on which the tunnel is installed. All return a list of `CheckResult` and change nothing.
"""

from bootbridge.bootstrap.diagnose.check.ignition_file import of_ignition as of_ignition
from bootbridge.bootstrap.diagnose.check.node import of_node as of_node
from bootbridge.bootstrap.diagnose.check.result import CheckResult as CheckResult
from bootbridge.bootstrap.diagnose.check.result import CheckVerdict as CheckVerdict
from bootbridge.bootstrap.diagnose.check.tree import of_directory as of_directory
