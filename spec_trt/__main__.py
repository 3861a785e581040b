"""`python -m spec_trt` is the `spec-trt` command."""

from spec_trt.cli import main

if __name__ == "__main__":
    main()
