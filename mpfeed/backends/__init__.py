"""Where sources run. ``base`` is the contract; each other module is one backend."""
