"""The embedded AWS emulator: MiniStack plus SageMaker, Application Auto Scaling and builds that really run.

A development tool. The product never imports it.
"""
