package vpcport

// Classes are all there are.
var Classes = func() (all [classes]Class) {
	for i := range all {
		all[i] = Class(i)
	}
	return all
}()
