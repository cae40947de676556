"""`warmroute picker-conformance`: does an endpoint picker keep the protocol?"""
