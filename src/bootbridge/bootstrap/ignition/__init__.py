"""Adds the rendered files to a bootstrap.ign and removes them again, byte for byte.

In the order in which data meets them: `json_spans` (positions in JSON text), `document` (files and edits of
an ignition file), `preflight` (reasons to reject a file), `bootkube` (lines for bootkube.sh),
`injection_record` (how to restore the original), `inject`. Runs in `bootbridge inject` and `check`.
"""
