"""The look of all verbs: aligned records, marks, durations, and a closing summary with the next command.

    from bootbridge.common.terminal.terminal import Mark, Styled, Terminal

    terminal = Terminal(sys.stdout)
    terminal.table([(Mark.GOOD, "server", "ready"), (Mark.BAD, "agents", reason)])
    terminal.table(rows, head=("PATH", "MODE", "STATE", "FOR"))
    terminal.record([Mark.GOOD, name, evidence], widths=(0, 24))     # rows that are printed one by one
    terminal.summary(Mark.GOOD, "The tunnel is ready.", next_steps=[("bootbridge doctor", "test each hop")])

A cell is a text, a `Styled` text (`Styled(text, "strong")`; `styles` has the names), or a `Mark`. Texts may
come from a peer, a cluster or a file: control characters are escaped, and nothing in them is markup.

The last cell of a record wraps on a terminal; if there is no room for it beside the others, it moves below
them. Without a terminal (pipe, file, TERM=dumb) a record is one line, without colour, with ASCII marks,
in every locale. NO_COLOR turns colours off; a locale or encoding without Unicode gets ASCII marks.

`figures` formats durations and sizes, `characters` makes texts safe to print. `bootbridge.common.progress`
shows steps while they run. `rich` is imported when the first line is rendered, never by the proxies.
"""
