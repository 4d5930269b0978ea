package source

// PoolInfo is one address pool in a Snapshot, as this node has it. Addresses
// are those of one family: a pair counts once.
type PoolInfo struct {
	Name      string `json:"name"`
	Blocks    int    `json:"blocks"`   // that this node has
	Draining  int    `json:"draining"` // of those, on their way back
	Used      int    `json:"used"`
	Cooling   int    `json:"cooling"`
	Free      int    `json:"free"`             // can be handed out
	NotReady  int    `json:"notReady"`         // their block's route is not there yet
	Retired   int    `json:"retired"`          // free ones of draining blocks
	Waiting   int    `json:"waiting"`          // Acquires that wait
	Requests  int    `json:"requests"`         // for blocks, without an answer yet
	Failed    string `json:"failed,omitempty"` // why requests fail, such as PoolExhausted
	Exhausted bool   `json:"exhausted"`        // they fail as no block of the pool is free
}
