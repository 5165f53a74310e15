"""kdtree-engine's Python side: the KDTR container, the numpy references and the golden generators."""
