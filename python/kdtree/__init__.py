"""kdtree-engine's Python side: KDTR files, the numpy references, the golden generators."""
