import { render } from 'preact'
import './style.css'

render(<h1>Berth planner</h1>, document.getElementById('app')!)
