"""`warmroute doctor`: gather facts from engines, routers and the configuration, and report what is wrong."""
