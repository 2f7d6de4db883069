"""What every room uses: argument checks, JAX helpers, random streams, plug-ins."""
