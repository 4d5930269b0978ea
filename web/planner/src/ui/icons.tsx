// Paths of 16 × 16 icons, drawn with the text's colour.
const paths = {
  system: 'M2 3h12v8H2zM6 14h4M8 11v3',
  light: 'M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.500 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1',
  dark: 'M13.500 9.500A6 6 0 0 1 6.500 2.500a6 6 0 1 0 7 7z',
  run: 'M4.500 2.500v11l9-5.500z',
  add: 'M8 3v10M3 8h10',
  remove: 'M3 4.500h10M6.500 4.500V3h3v1.500M4.500 4.500l.6 9h5.800l.6-9',
  copy: 'M6 6h7.500v7.500H6zM3.500 10H2.500V2.500H10v1',
  up: 'M8 13V3M4 7l4-4 4 4',
  down: 'M8 3v10M4 9l4 4 4-4',
  open: 'M2 13V3.500h4l1.500 1.500H14V13z',
  save: 'M8 2v8M5 7l3 3 3-3M2.500 13.500h11',
  warning: 'M8 2l6.500 11.500h-13zM8 6.500v3.500M8 11.800v.2',
}

/** An icon beside a text, which says the same to screen readers. */
export function Icon({ name }: { name: keyof typeof paths }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={paths[name]} />
    </svg>
  )
}
