"""Builds a release: `make release`, `make release-check` and `make wheel` call it (docs/release.md).

`source` exports the commit, `interpreters` and `environments` find and prepare each Python, `wheels`,
`images`, `chart`, `bills` and `notes` make the files, `build` calls them in order, and `check` builds twice
and compares. `cut` prepares the changelog.
"""
