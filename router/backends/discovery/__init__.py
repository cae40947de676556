"""Sources of the list of instances: the configuration, a file, DNS; and how their lists become one."""
