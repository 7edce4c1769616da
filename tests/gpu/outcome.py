"""How a check ends other than well."""


class NotRun(Exception):
    """This machine lacks something; the text says what."""


class Failed(Exception):
    """The text says what is wrong."""
