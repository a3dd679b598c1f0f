"""The cluster's controller: carries out what nodes ask for and may not do themselves."""
