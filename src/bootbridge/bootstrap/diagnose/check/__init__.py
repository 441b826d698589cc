"""Looks over a tunnel before and while it works: every check has a name, a verdict, evidence and a fix.

`of_ignition` reads an ignition file, `of_directory` what `bootbridge render` wrote, `of_node` a
node on which the tunnel runs. All give a list of findings and change nothing.
"""

from bootbridge.bootstrap.diagnose.check.ignition_file import of_ignition as of_ignition
from bootbridge.bootstrap.diagnose.check.node import of_node as of_node
from bootbridge.bootstrap.diagnose.check.result import CheckResult as CheckResult
from bootbridge.bootstrap.diagnose.check.result import CheckVerdict as CheckVerdict
from bootbridge.bootstrap.diagnose.check.tree import of_directory as of_directory
