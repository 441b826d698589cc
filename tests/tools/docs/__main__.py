"""For `make docs`: `stage DIRECTORY` writes the sources of the site, `check DIRECTORY` checks the pages."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tools.docs import reference, site_links
from tests.tools.docs.stage import NotInNavigation, stage


def main(arguments: list[str]) -> int:
    match arguments:
        case ["stage", directory]:
            try:
                stage(Path(directory), reference.pages())
            except NotInNavigation as error:
                print(f"docs: {error}", file=sys.stderr)
                return 1
            return 0
        case ["check", directory]:
            found = site_links.problems(Path(directory))
            for line in found:
                print(f"docs: {line}", file=sys.stderr)
            pages = sum(1 for _ in Path(directory).rglob("*.html"))
            print(f"docs: {pages} pages in {directory}, {len(found)} broken links")
            return 1 if found or not pages else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
