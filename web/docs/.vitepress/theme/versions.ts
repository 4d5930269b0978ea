import { defineComponent, h, onMounted, ref } from 'vue'
import { useData, useRoute, withBase } from 'vitepress'

/** Leads to the same page of another version. Versions are folders side by side; versions.json beside them lists them. */
export const VersionSwitcher = defineComponent({
  setup() {
    const version = useData<{ version: string }>().theme.value.version
    const route = useRoute()
    const versions = ref([version])
    onMounted(async () => {
      const reply = await fetch(withBase('/../versions.json')).catch(() => undefined)
      const listed: unknown = reply?.ok ? await reply.json().catch(() => undefined) : undefined
      if (Array.isArray(listed) && listed.includes(version)) versions.value = listed.map(String)
    })
    async function open(other: string) {
      const root = withBase('/../' + encodeURIComponent(other) + '/')
      const page = root + route.path.slice(withBase('/').length)
      const there = await fetch(page, { method: 'HEAD' }).catch(() => undefined)
      location.href = there?.ok ? page : root
    }
    return () =>
      h(
        'select',
        { class: 'versions', 'aria-label': 'Version of Berth', value: version, onChange: (e: Event) => open((e.target as HTMLSelectElement).value) },
        versions.value.map((v) => h('option', { value: v, selected: v === version }, v)),
      )
  },
})
