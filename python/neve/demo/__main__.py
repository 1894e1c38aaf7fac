from neve.demo.run import main

main()
