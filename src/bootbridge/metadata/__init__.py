"""Sources of metadata: which instance this is, and which others exist.

Used by `bootbridge node run` on an instance, and by the join service for its inventory. Each source is a
`Metadata` (`join_api/instance.py`): `static` (a file), `http` or `dns`; `configuration` reads which one an
operator chose. Every call reads again, as the infrastructure may be incomplete when instances boot.
"""
