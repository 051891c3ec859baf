"""The doctor: what a host's settings do to KVM, what would change that, and what it would gain. Nothing is changed.

``fs`` reads a host (this one, a folder, a snapshot) and only reads; ``facts`` says what was there; ``checks`` judge it
as :class:`~worldswitch.host.finding.Finding`; ``diagnosis`` runs them. All of it is standard library, for Python 3.9.
"""
