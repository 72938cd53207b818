from tclab.case_study._claims import artefacts_chart as artefacts_chart
from tclab.case_study._claims import component_table as component_table
from tclab.case_study._claims import hypotheses as hypotheses
from tclab.case_study._claims import overhead_costs as overhead_costs
from tclab.case_study._claims import overheads_chart as overheads_chart
from tclab.case_study._claims import published_ratios as published_ratios
from tclab.case_study._claims import ratios_chart as ratios_chart
