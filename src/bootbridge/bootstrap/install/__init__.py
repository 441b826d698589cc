"""Installs the tunnel on a running node (`up`), reports on it (`status`) and removes it (`down`).

`InstallContext` holds plan, node and cluster. `resources/` is one ordered list: `up` applies it forwards,
`down` removes it backwards. `InstallRecord` is written before anything is created; the `Receipt` lists what
was removed and what remains. Runs in the operator's `bootbridge` process and in `bootbridge node init`.
"""
