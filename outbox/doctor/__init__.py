"""``outbox doctor``: what is wrong, or weaker than it looks, with the broker, the database and the outbox itself.

``subjects`` is the list of everything that is looked at, ``*_checks`` are pure functions from facts to findings, and
``examination`` reads the facts part by part: a part that cannot be read is a finding, and the others go on.
"""
