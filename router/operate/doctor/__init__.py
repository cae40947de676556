"""`warmroute doctor`: gather what engines, routers and the configuration say, and name what is wrong."""
