"""CodeBuild builds that run: MiniStack keeps projects, this runs their buildspecs as processes."""
