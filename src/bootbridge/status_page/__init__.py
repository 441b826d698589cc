"""The status page of proxy-server and proxy-agent: the status document as HTML, with one drawing of the path.

Imported at the first request for the page, so that it costs nothing before.
"""
