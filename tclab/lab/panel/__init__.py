"""The live panel: a form, a Run button, and a sweep that runs in a thread of the notebook's kernel.

`tclab.lab.Panel` is the panel, `tclab.lab.LiveSweep` a sweep without a form.
"""
