"""Tables and sentences made from rows and graphs; the public ones are in `tclab.lab`."""
