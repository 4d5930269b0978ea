package enisource

// ServeUnconfirmed lets the inventory at hand be served: the supplier, which is
// the authority on what the node owns, has tried and has nothing newer, or has
// had confirm.Timeout to do so.
func (s *Source) ServeUnconfirmed() {
	s.mu.Lock()
	unconfirmed := s.unconfirmed
	s.mu.Unlock()
	if !unconfirmed {
		return
	}
	// Said before the first address goes out.
	s.log.Warn("giving out addresses by the stored inventory: nobody has confirmed it since the start")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unconfirmed = false
	s.serve(s.clock.Now())
}

// ObserveFailed implements the reconciler's Node.
func (s *Source) ObserveFailed(error) { s.ServeUnconfirmed() }
