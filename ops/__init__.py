"""What surrounds the product: stand-in model server, Flower console, examples, benchmarks."""
