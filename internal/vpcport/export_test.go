package vpcport

// Classes lists all classes.
var Classes = func() (all [classes]Class) {
	for i := range all {
		all[i] = Class(i)
	}
	return all
}()
