"""Gradio's theme from the tokens of assets/style.css, so that its widgets take the page's colours in light and dark."""

import gradio as gr


def build_theme() -> gr.themes.Base:
    """System faces, hairlines, no boxes around blocks; every colour is a CSS variable of the style sheet."""
    sans = ["ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
    mono = ["ui-monospace", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]
    values = {
        "body_background_fill": "var(--bg)",
        "body_text_color": "var(--ink)",
        "body_text_color_subdued": "var(--ink-3)",
        "block_background_fill": "transparent",
        "block_label_text_color": "var(--ink)",
        "block_title_text_color": "var(--ink)",
        "block_info_text_color": "var(--ink-3)",
        "block_border_color": "var(--line)",
        "border_color_primary": "var(--line)",
        "border_color_accent": "var(--relax)",
        "input_background_fill": "var(--panel)",
        "input_background_fill_focus": "var(--panel)",
        "input_border_color": "var(--line-2)",
        "input_border_color_focus": "var(--relax)",
        "input_placeholder_color": "var(--ink-3)",
        "slider_color": "var(--relax)",
        "button_primary_background_fill": "var(--relax)",
        "button_primary_background_fill_hover": "var(--relax)",
        "button_primary_border_color": "var(--relax)",
        "button_primary_text_color": "var(--ok-ink)",
        "button_primary_text_color_hover": "var(--ok-ink)",
        "button_secondary_background_fill": "var(--panel)",
        "button_secondary_background_fill_hover": "var(--panel)",
        "button_secondary_border_color": "var(--line-2)",
        "button_secondary_border_color_hover": "var(--ink-3)",
        "button_secondary_text_color": "var(--ink)",
        "checkbox_background_color": "var(--panel)",
        "checkbox_background_color_selected": "var(--relax)",
        "checkbox_border_color": "var(--ink-3)",
        "checkbox_border_color_selected": "var(--relax)",
        "checkbox_border_color_focus": "var(--relax)",
        "checkbox_label_background_fill": "var(--panel)",
        "checkbox_label_background_fill_hover": "var(--panel)",
        "checkbox_label_background_fill_selected": "var(--tint)",
        "checkbox_label_border_color": "var(--line-2)",
        "checkbox_label_border_color_hover": "var(--ink-3)",
        "checkbox_label_border_color_selected": "var(--relax)",
        "checkbox_label_text_color": "var(--ink)",
        "checkbox_label_text_color_selected": "var(--ink)",
        "error_border_color": "var(--error)",
    }
    flat = {
        "block_border_width": "0px",
        "block_padding": "0px",
        "block_radius": "0px",
        "block_shadow": "none",
        "block_title_background_fill": "none",
        "block_title_padding": "0",
        "block_title_text_weight": "500",
        "block_title_text_size": "13px",
        "block_info_text_size": "13px",
        "input_shadow": "none",
        "input_shadow_focus": "none",
        "input_radius": "8px",
        "input_text_size": "14px",
        "input_border_width": "1px",
        "button_primary_shadow": "none",
        "button_large_radius": "8px",
        "button_small_radius": "8px",
        "button_large_text_size": "14px",
        "button_large_text_weight": "500",
        "checkbox_label_padding": "6px 11px 6px 9px",
        "checkbox_label_text_size": "13px",
        "checkbox_shadow": "none",
        "layout_gap": "18px",
        "form_gap_width": "0px",
    }
    dark = {f"{name}_dark": value for name, value in values.items()}
    return gr.themes.Base(font=sans, font_mono=mono, radius_size="sm").set(**values, **dark, **flat)
