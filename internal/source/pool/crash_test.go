package pool

const childVar = "POOL_TEST_CHILD"

func child() int { return 0 }
