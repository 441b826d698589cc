"""The documentation as a site, and its checks (`make docs`).

markdown    a document as values: headings, links, code blocks, comments
links       every link and anchor of the documents
blocks      the code blocks that are marked as runnable, and their sessions
run_blocks  runs a session in a shell and compares its output
reference   pages from the declarations of commands, documents and metrics
stage       all pages in one tree, with the navigation of docs/index.md
site_links  every link of the built pages, and that they load nothing from elsewhere

`python -m tests.tools.docs stage|check DIRECTORY`; Sphinx runs in between, with `conf.py`.
"""
