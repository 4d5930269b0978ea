package v1alpha1

//go:generate controller-gen object paths=.
//go:generate controller-gen crd paths=. output:crd:dir=../../deploy/chart/files/crds
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_nodenetworks.yaml deploy/chart/templates/admission/nodenetworks.yaml > ../../docs/reference/nodenetwork.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_nodenetworktemplates.yaml deploy/chart/templates/admission/nodenetworks.yaml > ../../docs/reference/nodenetworktemplate.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_addresspools.yaml deploy/chart/templates/admission/pools.yaml > ../../docs/reference/addresspool.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_addressblocks.yaml deploy/chart/templates/admission/pools.yaml > ../../docs/reference/addressblock.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_blockrequests.yaml deploy/chart/templates/admission/pools.yaml > ../../docs/reference/blockrequest.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_vpcs.yaml deploy/chart/templates/admission/ports.yaml > ../../docs/reference/vpc.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_podnics.yaml deploy/chart/templates/admission/ports.yaml > ../../docs/reference/podnic.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_nicpolicies.yaml deploy/chart/templates/admission/ports.yaml > ../../docs/reference/nicpolicy.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_egresses.yaml deploy/chart/templates/admission/egress.yaml > ../../docs/reference/egress.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_egressclients.yaml deploy/chart/templates/admission/egress.yaml > ../../docs/reference/egressclient.md"
//go:generate sh -c "go run ./crdpage ../../deploy/chart/files/crds/berth.dev_egressclientslices.yaml deploy/chart/templates/admission/egress.yaml > ../../docs/reference/egressclientslice.md"
