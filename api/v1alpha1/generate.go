package v1alpha1

//go:generate controller-gen object paths=.
//go:generate controller-gen crd paths=. output:crd:dir=../../deploy/crds
//go:generate sh -c "go run ./crdpage ../../deploy/crds/berth.dev_nodenetworks.yaml deploy/operator-mode/admission.yaml > ../../docs/reference/nodenetwork.md"
//go:generate sh -c "go run ./crdpage ../../deploy/crds/berth.dev_addresspools.yaml deploy/pool-mode/admission.yaml > ../../docs/reference/addresspool.md"
//go:generate sh -c "go run ./crdpage ../../deploy/crds/berth.dev_addressblocks.yaml deploy/pool-mode/admission.yaml > ../../docs/reference/addressblock.md"
//go:generate sh -c "go run ./crdpage ../../deploy/crds/berth.dev_blockrequests.yaml deploy/pool-mode/admission.yaml > ../../docs/reference/blockrequest.md"
