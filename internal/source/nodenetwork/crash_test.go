package nodenetwork

const childVar = "NODENETWORK_TEST_CHILD"

func child() int { return 0 }
