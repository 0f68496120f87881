from bench.reproduce.cli import main

main()
