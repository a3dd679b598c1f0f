"""Configuration: what may be set, reading it from files and environment, and saying what is wrong with it.

``schema`` holds the settings and nothing else, ``load`` reads and checks them, ``report`` renders problems and values.
Nothing here knows a check, a source or a back end: the checks' own settings classes are handed in.
"""
