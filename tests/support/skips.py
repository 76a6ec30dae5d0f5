"""What a test leaves out, and says so: tests/run.sh repeats these lines at its end. NANOTRON_REQUIRE_TOOLS, which .ci/run sets,
makes a failure of a missing tool that jobscripts/install_dependencies.sh --tests brings."""
import os
import shutil
import sys

BROUGHT = "jobscripts/install_dependencies.sh --tests brings it"


def tools_are_required():
    return bool(os.environ.get("NANOTRON_REQUIRE_TOOLS"))


def skip(reason):
    """Ends a test that has nothing to look at here."""
    print(f"skipped: {reason}")
    sys.exit(77)


def left_out(reason):
    """A part of a test."""
    print(f"left out: {reason}", flush=True)


def lacking(reason):
    """A part of a test whose tool install_dependencies.sh --tests brings."""
    if tools_are_required():
        print(f"FAILED: {reason}: {BROUGHT}")
        sys.exit(1)
    left_out(reason)


def has_tool(tool, of):
    """Whether a part of a test can run."""
    if not shutil.which(tool):
        lacking(f"no {tool}: {of}")
        return False
    return True


def need_tools(*tools):
    """Of the whole test."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        lacking(f"no {', '.join(missing)}")
        skip(BROUGHT)
