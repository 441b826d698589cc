"""`bootbridge top`: a running server or agent, live in a terminal.

`fetch` gets `/status`, or `/metrics` of a Go program; `status_document` and `metrics_page` parse it into a
`snapshot`; `rates` compares two of them. `tables` has the columns, sorts and filters; `view_state` what the
keys change. `view` makes the lines of a frame from these, without I/O. `screen` owns the terminal, `live` the
loop; `once` prints a single sample. `port_forward` reaches a program in a cluster.
"""
