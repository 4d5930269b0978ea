package v1alpha1

//go:generate controller-gen object paths=.
//go:generate controller-gen crd paths=. output:crd:dir=../../deploy/crds
//go:generate sh -c "go run ./crdpage ../../deploy/crds/berth.dev_nodenetworks.yaml > ../../docs/reference/nodenetwork.md"
