"""The invariances by name; the modules beside this one enter theirs."""

from properties.judging.calls import Property, registering

PROPERTIES: dict[str, Property] = {}

invariance = registering("invariances", PROPERTIES)
