package nft

import "slices"

// Lost is how many rules of t are not in now, which has the same name: there are fewer that do the same in the same chain.
func (t Table) Lost(now Table) (int, error) {
	had, err := t.rules()
	if err != nil {
		return 0, err
	}
	have, err := now.rules()
	if err != nil {
		return 0, err
	}
	lost := 0
	for _, r := range had {
		at := slices.IndexFunc(have, func(other rule) bool { return other.chain == r.chain && other.digest == r.digest })
		if at < 0 {
			lost++
			continue
		}
		have = slices.Delete(have, at, at+1)
	}
	return lost, nil
}
